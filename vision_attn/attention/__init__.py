"""How to attend: scores, soft, hard and monotonic attention, glimpses, DRAW's filterbank, REINFORCE."""
