"""How well the stages of `wc.recommend` foretell what a full training comes to, on the recipes that are shipped."""
