"""What the controller asks for, and what ranks say: starting, granting, drills, examinations, the lease."""
