"""Text to tokens and back: the tokenizer, streaming decoding, stop words, the tokenizer check."""
