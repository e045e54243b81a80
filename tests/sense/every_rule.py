"""Imports the files of rules, so that every rule is declared."""

from __future__ import annotations

from sense import cluster_rules, plan_rules, prediction_rules, serving_rules, training_rules

FILES = (prediction_rules, training_rules, serving_rules, cluster_rules, plan_rules)
