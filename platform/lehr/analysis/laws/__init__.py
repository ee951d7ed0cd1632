"""Laws of the final loss over size, tokens and decided values, and what a campaign asks of them."""
