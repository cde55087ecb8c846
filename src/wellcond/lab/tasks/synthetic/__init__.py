"""Tasks that are generated: ListOps and Pathfinder."""
