/* Layers of awkward sizes in memory that is not a float longer than it has to be. */
#include "protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void run_layers(void);

static float *numbers(int64_t count)
{
    float *made = malloc((uint64_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        made[i] = (float)(i * 7919 % 1000) * 1e-4f - 0.05f;
    return made;
}

static void check(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "%s: %d\n", what, status);
        exit(1);
    }
}

static void run_convolutions(int64_t count, int64_t channels, int64_t height, int64_t width, int64_t num_layers,
                             const int64_t (*shapes)[3], int64_t lanes)
{
    rl_convolution layers[RL_MOST_CONVOLUTIONS];
    uint8_t *pixels = malloc((uint64_t)(count * channels * height * width));
    memset(pixels, 7, (uint64_t)(count * channels * height * width));
    rl_images images = {pixels, NULL, 1.0f / 255, count, channels * height * width, height * width, width, 1};
    for (int64_t i = 0; i < num_layers; i++) {
        int64_t outputs = shapes[i][0], kernel = shapes[i][1], stride = shapes[i][2];
        int64_t weights = outputs * channels * kernel * kernel;
        layers[i] = (rl_convolution){
            channels, height, width, outputs, kernel, stride, numbers(weights), numbers(outputs), NULL,
            numbers(weights), numbers(outputs),
        };
        channels = outputs;
        height = (height - kernel) / stride + 1;
        width = (width - kernel) / stride + 1;
        layers[i].result = numbers(count * channels * height * width);
    }
    float *output = numbers(count * channels * height * width);
    check(rl_conv_forward(layers, num_layers, &images, output, 2, lanes), "rl_conv_forward");
    check(rl_conv_backward(layers, num_layers, &images, output, 2, lanes), "rl_conv_backward");
    for (int64_t i = 0; i < num_layers; i++) {
        free((void *)layers[i].weight);
        free((void *)layers[i].bias);
        free(layers[i].result);
        free(layers[i].weight_gradient);
        free(layers[i].bias_gradient);
    }
    free(output);
    free(pixels);
}

static void run_dense(int64_t rows, int64_t inputs, int64_t middle, int64_t outputs, int64_t activation, int64_t lanes)
{
    int64_t pitch = rl_dense_pitch(middle);
    rl_layer layers[2] = {
        {inputs, middle, activation, numbers(middle * inputs), numbers(middle), numbers(rows * pitch),
         activation == RL_SILU ? numbers(rows * pitch) : NULL, numbers(middle * inputs), numbers(middle)},
        {middle, outputs, RL_NO_ACTIVATION, numbers(outputs * middle), numbers(outputs), numbers(rows * outputs), NULL,
         numbers(outputs * middle), numbers(outputs)},
    };
    float *x = numbers(rows * inputs), *x_gradient = numbers(rows * inputs);
    check(rl_dense_forward(layers, 2, x, inputs, rows, 2, lanes), "rl_dense_forward");
    check(rl_dense_backward(layers, 2, x, inputs, rows, layers[1].result, x_gradient, 2, lanes), "rl_dense_backward");
    for (int i = 0; i < 2; i++) {
        free((void *)layers[i].weight);
        free((void *)layers[i].bias);
        free(layers[i].result);
        free(layers[i].sums);
        free(layers[i].weight_gradient);
        free(layers[i].bias_gradient);
    }
    free(x);
    free(x_gradient);
}

void run_layers(void)
{
    static const int64_t nature[][3] = {{32, 8, 4}, {64, 4, 2}, {64, 3, 1}};
    static const int64_t left_over[][3] = {{16, 5, 2}, {48, 3, 2}, {80, 2, 1}};
    static const int64_t uneven[][3] = {{16, 5, 3}, {32, 4, 3}};
    for (int64_t lanes = 16; lanes >= 4; lanes /= 2) {
        run_convolutions(2, 4, 84, 84, 3, nature, lanes);
        run_convolutions(3, 3, 23, 31, 3, left_over, lanes);
        run_convolutions(35, 3, 40, 37, 2, uneven, lanes);
        run_convolutions(1, 1, 3, 3, 1, (const int64_t[][3]){{16, 3, 1}}, lanes);
        run_dense(97, 5, 33, 3, RL_TANH, lanes);
        run_dense(200, 20, 70, 130, RL_SILU, lanes);
        run_dense(1, 1, 1, 1, RL_RELU, lanes);
    }
}
