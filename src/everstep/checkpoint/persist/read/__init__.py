"""From stored files back to tensors, to other shapes, and to other formats."""
