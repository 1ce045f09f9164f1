"""The terms of a captioner's loss, one class per file: likelihood, penalties on maps, REINFORCE."""
