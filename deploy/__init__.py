"""Running a bundle on a robot: inference, safety, modes and the ROS 2 nodes."""
