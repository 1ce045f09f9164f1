"""How to attend: scores, soft, hard and monotonic attention, glimpses, filterbanks, REINFORCE."""
