/* What Python may call. Read by the C compiler and by the cffi generator alike, hence no preprocessor lines:
 * include protocol.h, not this file. Failures are negative errno values. Times are nanoseconds of CLOCK_MONOTONIC.
 * A wait ends with -ETIMEDOUT, or with -EINTR when a signal arrived, so that Python can run its handlers. */

enum {
    RL_CONTROL_BYTES = 64,
    RL_RING_BYTES = 256,
    RL_SLOT_BYTES = 64,
    RL_DOORBELL_BYTES = 64,
    RL_MAILBOX_BYTES = 128,
    RL_SEQLOCK_BYTES = 64,
    RL_BOARD_BYTES = 192,
    RL_MAX_OWNER = 16777215,
    RL_NO_ACTIVATION = 0,
    RL_TANH = 1,
    RL_RELU = 2,
    RL_ELU = 3,
    RL_SILU = 4,
    RL_MOST_CONVOLUTIONS = 8
};

typedef struct rl_control rl_control;
typedef struct rl_ring rl_ring;
typedef struct rl_slot rl_slot;
typedef struct rl_doorbell rl_doorbell;
typedef struct rl_mailbox rl_mailbox;
typedef struct rl_seqlock rl_seqlock;
typedef struct rl_board rl_board;

/* One field's rows on their way between the slab and a caller's array. */
typedef struct {
    uint8_t *slab;        /* [slots, T+1, block] */
    uint8_t *rows;        /* the caller's array */
    uint64_t block_bytes; /* one step of one env group */
    uint64_t pitch_bytes; /* fragments: distance between two steps in `rows` */
} rl_copy;

/* A fully connected layer in the caller's memory, see dense.c. Eight bytes a field: callers fill it as an array. */
typedef struct {
    int64_t inputs;
    int64_t outputs;
    int64_t activation;     /* RL_TANH, ... */
    const float *weight;    /* [outputs, inputs] */
    const float *bias;      /* [outputs] */
    float *result;          /* what comes out; NULL where it is not to be kept */
    float *sums;            /* what goes into the activation, for RL_SILU; else NULL */
    float *weight_gradient; /* [outputs, inputs], or NULL; then the next too */
    float *bias_gradient;   /* [outputs] */
} rl_layer;

/* A convolution without padding and its ReLU, see conv.c. Eight bytes a field: callers fill it as an array. */
typedef struct {
    int64_t channels;
    int64_t height;
    int64_t width;
    int64_t outputs; /* a multiple of 16 */
    int64_t kernel;
    int64_t stride;
    const float *weight;    /* [outputs, channels, kernel, kernel] */
    const float *bias;      /* [outputs] */
    float *result;          /* what comes out of the ReLU; NULL where it is not to be kept */
    float *weight_gradient; /* as the weight */
    float *bias_gradient;   /* [outputs] */
} rl_convolution;

/* Images of bytes or of floats, whose elements may lie apart. */
typedef struct {
    const uint8_t *bytes; /* or NULL, then `floats` */
    const float *floats;
    float scale; /* what each is multiplied by */
    int64_t count;
    int64_t image_step; /* from one image to the next, in elements */
    int64_t channel_step;
    int64_t row_step;
    int64_t column_step;
} rl_images;

/* Open requests, one array each, filled oldest first. */
typedef struct {
    int64_t *lane;
    int64_t *slot;
    int64_t *step;
    int64_t *fragment_index;
    int64_t *required_version;
    int64_t *arrival_ns;
    uint32_t *served; /* by lane: the request that was handed out */
} rl_pending;

/* A sum tree in the caller's memory, see sumtree.c. */
typedef struct {
    double *sums;
    double *mins;
    int64_t num_leaves;
    int64_t num_levels;  /* leaves and root included, 2 or more */
    int64_t offsets[24]; /* of each level in `sums` */
} rl_tree;

/* The rows of the replay that windows are made of, see replay.c. */
typedef struct {
    const float *rewards; /* [lanes, rows, envs] */
    const uint8_t *flags; /* [lanes, rows, envs] */
    int64_t num_lanes;
    int64_t rows;
    int64_t num_envs;
    int64_t n_step;
    double discount;
} rl_replay;

/* Frames of stacked observations: a ring for each env. */
typedef struct {
    uint8_t *source;       /* [lanes * envs, num_frames, frame] */
    const int64_t *newest; /* [lanes, rows, envs], number of each row's last frame since the start */
    int64_t num_frames;
    int64_t stack;
    uint64_t frame_bytes;
} rl_frames;

/* One field on its way into a batch. */
typedef struct {
    const rl_frames *frames; /* what it is put together from, or NULL */
    const uint8_t *source;   /* [lanes, rows, envs, item] where there are no frames */
    uint64_t item_bytes;
    uint8_t *rows;      /* [count, item] */
    uint8_t *next_rows; /* the same of the rows behind the windows, or NULL */
} rl_replay_field;

/* The caller's arrays for a batch. */
typedef struct {
    int64_t count;
    float *returns;
    float *discounts;
    int64_t *next_items; /* scratch: the rows behind the windows */
    const rl_replay_field *fields;
    int64_t num_fields;
} rl_replay_batch;

/* control.c */
uint32_t rl_control_count(rl_control *control);
int rl_control_wait(rl_control *control, uint32_t seen, int64_t timeout_ns);
void rl_control_notify(rl_control *control);
uint32_t rl_control_stop(rl_control *control);
void rl_control_set_stop(rl_control *control, uint32_t value);
uint32_t rl_control_finish(rl_control *control);
void rl_control_set_finish(rl_control *control, uint32_t value);
int64_t rl_control_snapshot_fragment(rl_control *control);
void rl_control_set_snapshot_fragment(rl_control *control, int64_t fragment_index);

/* ring.c */
int64_t rl_ring_claim(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner, int64_t timeout_ns,
                      uint32_t *held);
int64_t rl_ring_claim_overwriting(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner, uint32_t *held);
int rl_ring_publish(rl_ring *ring, rl_slot *slots, int64_t slot, uint32_t owner, const uint32_t *held, int64_t lane,
                    int64_t fragment_index, int64_t policy_version, int64_t sequence);
int64_t rl_ring_take(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner, int64_t timeout_ns,
                     uint32_t *held);
int rl_ring_release(rl_ring *ring, rl_slot *slots, int64_t slot, uint32_t owner, const uint32_t *held);
int64_t rl_ring_reclaim(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner);
void rl_ring_meta(rl_slot *slots, int64_t slot, int64_t *meta);
uint32_t rl_ring_generation(rl_slot *slots, int64_t slot);
void rl_ring_counts(rl_ring *ring, rl_slot *slots, int64_t num_slots, int64_t *counts);

/* gather.c */
int rl_gather_step(const rl_copy *fields, int64_t num_fields, const int64_t *slots, const int64_t *steps,
                   int64_t num_requests, int64_t num_slots, int64_t num_steps);
int rl_scatter_step(const rl_copy *fields, int64_t num_fields, const int64_t *slots, const int64_t *steps,
                    int64_t num_requests, int64_t num_slots, int64_t num_steps);
void rl_gather_fragment(const rl_copy *fields, int64_t num_fields, int64_t slot, int64_t position, int64_t num_steps);

/* memory.c */
void rl_keep_memory(int64_t keep_bytes);

/* mailbox.c */
void rl_mailbox_post(rl_doorbell *doorbell, rl_mailbox *boxes, int64_t lane, int64_t slot, int64_t step,
                     int64_t fragment_index, int64_t required_version);
void rl_mailbox_cancel(rl_mailbox *boxes, int64_t lane);
int rl_mailbox_wait_reply(rl_mailbox *boxes, int64_t lane, int64_t timeout_ns);
uint32_t rl_doorbell_count(rl_doorbell *doorbell);
uint32_t rl_doorbell_wait(rl_doorbell *doorbell, uint32_t seen, int64_t timeout_ns);
int64_t rl_mailbox_pending(rl_mailbox *boxes, int64_t num_lanes, rl_pending *out);
int64_t rl_mailbox_reply(rl_mailbox *boxes, int64_t num_lanes, const int64_t *lanes, int64_t num_replies,
                         const uint32_t *served, int64_t policy_version);
int64_t rl_mailbox_reply_version(rl_mailbox *boxes, int64_t lane);
int64_t rl_mailbox_progress(rl_mailbox *boxes, int64_t lane);
void rl_mailbox_set_progress(rl_mailbox *boxes, int64_t lane, int64_t fragment_index);
void rl_mailbox_set_live(rl_mailbox *boxes, int64_t lane, uint32_t live);
int64_t rl_mailbox_num_live(rl_mailbox *boxes, int64_t num_lanes);

/* seqlock.c */
void rl_seqlock_write(rl_seqlock *lock, uint8_t *area, int64_t tag, const uint8_t *source, uint64_t nbytes);
int64_t rl_seqlock_read(rl_seqlock *lock, const uint8_t *area, uint64_t room, int64_t *tag, uint8_t *target);

/* weights.c */
void rl_board_publish(rl_board *board, uint8_t *buffers, uint64_t stride_bytes, int64_t version,
                      const uint8_t *source, uint64_t nbytes);
int64_t rl_board_read(rl_board *board, const uint8_t *buffers, uint64_t stride_bytes, int64_t wanted, uint8_t *target,
                      uint64_t nbytes);
int64_t rl_board_latest(rl_board *board);
int64_t rl_board_wait(rl_board *board, int64_t at_least, int64_t timeout_ns);

/* uniform.c */
int rl_uniform(uint64_t seed, const int64_t *env_indices, const int64_t *env_steps, int64_t num_rows,
               int64_t num_components, float *out);

/* replay.c */
int rl_replay_gather(const rl_replay *replay, const int64_t *items, const rl_replay_batch *batch);
int64_t rl_replay_push(const rl_frames *frames, int64_t ring, int64_t num_pushed, const uint8_t *stacks,
                       uint64_t pitch_bytes, int64_t count, int64_t *newest, int64_t newest_pitch);

/* sumtree.c */
int rl_tree_set(rl_tree *tree, const int64_t *leaves, const double *masses, int64_t count);
void rl_tree_find(const rl_tree *tree, const double *masses, int64_t count, int64_t *leaves);
int rl_tree_sample(const rl_tree *tree, const uint32_t *generations, uint64_t seed, uint64_t draw, int64_t count,
                   double beta, int over_all, double *masses, int64_t *leaves, uint32_t *drawn_generations,
                   float *weights, double *probabilities);
int64_t rl_tree_update(rl_tree *tree, const uint32_t *generations, const int64_t *leaves,
                       const uint32_t *drawn_generations, const float *errors, int64_t count, double alpha, double eps,
                       int64_t *skipped, double *largest, int64_t *kept);
void rl_tree_rebuild(rl_tree *tree);

/* dense.c */
int64_t rl_dense_pitch(int64_t width);
int rl_dense_forward(const rl_layer *layers, int64_t num_layers, const float *x, int64_t x_pitch, int64_t rows,
                     int64_t num_threads, int64_t most_lanes);
int rl_dense_backward(const rl_layer *layers, int64_t num_layers, const float *x, int64_t x_pitch, int64_t rows,
                      const float *output_gradient, float *input_gradient, int64_t num_threads, int64_t most_lanes);

/* conv.c */
int rl_conv_forward(const rl_convolution *layers, int64_t num_layers, const rl_images *images, float *output,
                    int64_t num_threads, int64_t most_lanes);
int rl_conv_backward(const rl_convolution *layers, int64_t num_layers, const rl_images *images,
                     const float *output_gradient, int64_t num_threads, int64_t most_lanes);
