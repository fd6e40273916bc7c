"""Speech in and out, offline: what a person says becomes instructions and questions, texts become sound. No ROS."""
