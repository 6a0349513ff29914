"""What environment the agent gives its ranks."""

from everstep.agent.processes.environment import base_environment, rank_environment
from everstep.model.actions import StartWorkers
from everstep.model.spec import RunSpec

ACTION = StartWorkers(
    why="test",
    node="n0",
    generation=3,
    slot=1,
    first_rank=4,
    num_ranks=4,
    world_size=8,
    num_slots=2,
    store_host="10.0.0.1",
    store_port=29400,
    resume_step=None,
)


def test_ranks_get_torchruns_variables(tmp_path):
    base = base_environment({"HOME": "/h", "EVERSTEP_LINK_FD": "9"}, 4, "w", watches=True)
    env = rank_environment(
        base,
        RunSpec(program="t.py", role="trainer"),
        ACTION,
        local_rank=2,
        run="r1",
        max_restarts=7,
        error_file=tmp_path,
    )
    assert env == {
        "HOME": "/h",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_FR_BUFFER_SIZE": "512",
        "EVERSTEP_WARD": "w",
        "RANK": "6",
        "LOCAL_RANK": "2",
        "GROUP_RANK": "1",
        "ROLE_RANK": "6",
        "ROLE_NAME": "trainer",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "7",
        "TORCHELASTIC_RUN_ID": "r1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(tmp_path),
        "EVERSTEP_RUN_ID": "r1",
        "EVERSTEP_GENERATION": "3",
        "EVERSTEP_SLOT": "1",
        "EVERSTEP_RESUME_STEP": "",
    }


def test_the_users_threads_and_a_lone_rank_are_left_alone():
    assert base_environment({"OMP_NUM_THREADS": "8"}, 4, "w")["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in base_environment({}, 1, "w")
    assert base_environment({"TORCH_FR_BUFFER_SIZE": "0"}, 1, "w")["TORCH_FR_BUFFER_SIZE"] == "0"
    assert base_environment({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, 1, "w")["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
