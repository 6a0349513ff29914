"""Another host goes on with the controller when its host is gone: who may, with what, and how two never act."""
