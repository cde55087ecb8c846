"""Attention as strangers write it: short modules in the idiom of many libraries, with an oracle inside each."""
