"""Explanations of tables, and those of shap, compared with exact values."""
