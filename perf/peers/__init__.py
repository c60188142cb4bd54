"""What compare_peers.py measures: MediaPipe FaceMesh in its own processes and behind the usual servers, and ours.

The modules ``serve_*`` and ``run_*`` are programs for the peers' own virtual environment, and so is ``face_mesh``; the
others belong to the project's. ``timed_loop`` serves both.
"""
