"""Recipes: each module has `get_config(arg)`; see common.py for every key."""
