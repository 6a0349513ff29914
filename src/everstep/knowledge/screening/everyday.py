"""Words that logs of healthy jobs, configurations and listings of programs are full of: no good to look for.

In four texts, the most frequent first. They decide which of the words that a pattern requires is looked for, and so
only about speed. A word counts as found in a text also as a part of another one.
"""

_ALL_THE_TIME = """
number of nan iterations: number of skipped iterations: loss scale: grad norm: NCCL INFO Gradient overflow Batch CUMEM
Channel DLL Epoch GiB INFO INTERVAL_END INTERVAL_START IPC Iteration MLLOG NCCL Node POINT_IN_TIME Speed True accuracy
batch benchmark bert consumed def elapsed encoder epoch_count epoch_start epoch_stop eval_error eval_start eval_stop
event_type file first_epoch_num for global grad_norm hooks instance iteration_time iterations key layer_ learning_rate
lineno memory metadata mfu namespace nan node null number opt per rank read return root run_pretraining runtime
samples scale sec self size skipped step_avg tensor tflops the throughput time_ms titan torch tps train_acc train_loss
train_time unet utils value via vol weights_initialization workspace
"""
_OFTEN = """
False None RUN TIMING Training Warning __init__ and args assert attention bias block_start block_stop config cpp cuda
dense deprecated distributed else eval_accuracy function import init_start kernel layers longer loss_scale main max
min mlperf mlx model not operator optimized optimizers output params path print pytorch script storage supported
trainer use validation
"""
_SOMETIMES = """
NET/IB NET/Plugin mlx5_ib rdma signal: code: result status version CUDA_VISIBLE_DEVICES requeueing Initializing kill
command server recovery torchrun shards dataloader schedule views stack failed cannot allocate connection CPU DALI
Disabled ENDING Error GPU LayerNorm Loss NVIDIA Naive Path Pooled RESULT SGD STARTING Tensor The This Time Torch
UserWarning Using WARNING all append are argument available backbone beta bin bits blocks body buffer cache_clear can
common compute context device docs down dtype environment files fit float forward from gamma group handle header idx
initialized intermediate isinstance iters len lib linear list local logging method models module msg mxnet n_gpu
num_gpus num_nodes num_sockets nvidia only open packages parameters passed python query range reset resnet result
running seed send site src ssd stable stage state status still string subprocess success super sys than that this
token total true used usr version warmup warnings which will with zero
"""
_NOW_AND_THEN = """
Add Arguments Cannot Clearing DeprecationWarning For Process PyTorch Python RING Run _beta _gamma _weight about abs
add again allow alpha annotations argv async attn avoid backward batches best better break buffering chunks closed
compatibility compiled connected connection could create dataclass decoder defaults depth dict dimensions directly
does drop_caches each empty etc eval_loss evaluation every exec extend false field filters final find fixed
global_steps has have how html https include index information input instead interface internally iterator itself just
keep keyword kwargs label large last length like loader loop magic make many match may methods modeling modules more
multiple necessary network next now offset org over parser pattern point pop position power pretrained purpose queue
random readinto recommended relative relu removed residual results returns save seek sequence shape should side simple
something sorted source stack standard stderr stdout store style such symbol take their them then there those threads
tmp unique update using variable vars wait way well were where while width you zip
"""
EVERYDAY = (_ALL_THE_TIME, _OFTEN, _SOMETIMES, _NOW_AND_THEN)
