"""LSTM, linear layers, dropout, padding, log-likelihood of words: plain layers without attention."""
