"""What a robot is, senses and accepts: the ground floor, free of simulators and learners."""
