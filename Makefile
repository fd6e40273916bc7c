# make setup     environment in .venv: ROS 2 from PyPI, torch, this package with its interfaces (quick when nothing changed)
# make demo      a simulated robot that is told and asked things; writes demo_output/
# make demo-bag  the same nodes on a recorded humanoid bag; needs no OpenGL
# make test      all tests
# make lint      style of the Python code, and types of engine and safety
# make clean     removes all of it again

# Python to make .venv with: 3.10 to 3.14.
PYTHON ?= python3

# What pip is asked for. A CPU build is enough. On x86-64 pip's own default brings CUDA with it (some gigabytes); to have the
# CPU build, add the package index that the torch web site names for it: make demo TORCH='torch==2.13.0 --index-url ...'
TORCH ?= torch==2.13.0

# Everything runs on the ROS 2 of .venv, also in a shell that has sourced another one.
ifneq ($(AMENT_PREFIX_PATH)$(_ROS_WHEELS_BOOTSTRAP_COMPLETE),)
unexport LD_LIBRARY_PATH
endif
unexport AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH PYTHONPATH PYTHONHOME ROS_DISTRO RMW_IMPLEMENTATION
unexport VIRTUAL_ENV _ROS_WHEELS_BOOTSTRAP_COMPLETE

.PHONY: setup demo demo-bag test lint clean
.DEFAULT_GOAL := setup

setup:
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' bash scripts/setup.sh

demo: setup
	@.venv/bin/oxygen_ros demo $(ARGS)

demo-bag: setup
	@.venv/bin/oxygen_ros demo --bag $(ARGS)

# Tests that talk over ROS claim a domain each, below 100; this one is for those that should not talk.
test: setup
	@ROS_DOMAIN_ID=101 ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
	  .venv/bin/python -m pytest $(ARGS)

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/mypy

clean:
	rm -rf .venv build dist *.egg-info oxygen_ros/msg oxygen_ros/srv oxygen_ros/*.so demo_output .pytest_cache .ruff_cache .mypy_cache doc/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
