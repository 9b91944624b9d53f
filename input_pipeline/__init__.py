"""Host input: which example comes when, read, decoded, augmented, batched."""
