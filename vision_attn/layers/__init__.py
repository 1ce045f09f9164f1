"""LSTM, linear layers, log-likelihood of words, ragged batches: plain layers without attention."""
