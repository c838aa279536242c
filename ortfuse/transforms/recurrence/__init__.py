"""Recurrent networks that were spelled out, step by step or as a loop: back to the operators LSTM, GRU and RNN."""
