"""Load tests with the tools that others use: perf_analyzer and genai-perf."""
