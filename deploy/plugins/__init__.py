"""Drivers: RobotIO plug-ins for hardware, and a template to write one's own."""
