"""Measure retrieval and answers: data sets, measures, diagnoses, benchmarks and their report."""
