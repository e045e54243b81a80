"""verl's own configuration, composed by Hydra with the overrides of a job; prints what came out as JSON.

python verl_config.py PACKAGES OVERRIDES.json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

folder = Path(sys.argv[1]) / "verl" / "trainer" / "config"
composed = []
for overrides in json.loads(Path(sys.argv[2]).read_text()):
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        composed.append(OmegaConf.to_container(compose("ppo_trainer", overrides=overrides), resolve=True))
sys.stdout.write("\n" + json.dumps(composed) + "\n")
