"""Find causes of wrong outputs: locate and mend faults, repair provably, explain compression.

python apps/find_causes.py faults --model lenet5
python apps/find_causes.py mending --model lenet5
python apps/find_causes.py repair --model lenet5
python apps/find_causes.py compression --pair lenet5-integer
"""

from reproduction.application import add_experiment, application, main
from reproduction.debugging.settings import (
    CompressionSettings,
    LocalisationSettings,
    MendingSettings,
    RepairSettings,
)

DEBUGGING = "reproduction.debugging"

app = application(__doc__)
add_experiment(app, "faults", LocalisationSettings, f"{DEBUGGING}.localisation:localisation")
add_experiment(app, "mending", MendingSettings, f"{DEBUGGING}.mending:mending")
add_experiment(app, "repair", RepairSettings, f"{DEBUGGING}.mending:provable_repair")
add_experiment(app, "compression", CompressionSettings, f"{DEBUGGING}.compression:compression")

if __name__ == "__main__":
    main(app)
