"""A second opinion on a gradient: our rules against jax.vjp and finite differences."""
