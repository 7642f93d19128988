"""Free capacity of nodes, feasibility of shapes, expected ends of pods, and placement."""
