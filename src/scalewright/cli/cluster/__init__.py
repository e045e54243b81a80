"""Commands about clusters and jobs: launch, jobs, advise, preflight, site, lab, lint."""
