"""Imitating the robot: worlds, sensors, actuators and tasks as one array program."""
