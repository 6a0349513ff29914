"""The pages of `everstep fabric`."""
