"""Files of Hugging Face models, read into our own shapes."""
