"""BiT and BERT training at large batch in JAX."""
