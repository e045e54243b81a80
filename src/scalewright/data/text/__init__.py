"""Text sets: cleaned, deduplicated, tokenised, shuffled and written as training reads them."""
