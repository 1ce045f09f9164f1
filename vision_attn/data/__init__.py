"""What is looked at: the data sets, in one folder for each kind, and what they share."""
