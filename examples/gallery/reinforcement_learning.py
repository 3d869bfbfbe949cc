"""Deep Q-learning with a replay buffer and a target network, on a walk along a corridor."""

import json
from collections import deque

import keras
import numpy as np
import tensorflow as tf

LENGTH, ACTIONS, GAMMA = 6, 2, 0.95

keras.utils.set_random_seed(191)
rng = np.random.default_rng(192)


class Corridor:
    """Right leads to the goal; each step costs a little."""

    def reset(self):
        self.place, self.steps = 0, 0
        return self.observation()

    def observation(self):
        return np.eye(LENGTH, dtype="float32")[self.place]

    def step(self, action):
        self.place = min(max(self.place + (1 if action else -1), 0), LENGTH - 1)
        self.steps += 1
        at_goal = self.place == LENGTH - 1
        return self.observation(), 1.0 if at_goal else -0.05, at_goal or self.steps >= 25


def create_q_model():
    return keras.Sequential(
        [
            keras.Input((LENGTH,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(ACTIONS, activation="linear"),
        ]
    )


model, model_target = create_q_model(), create_q_model()
model_target.set_weights(model.get_weights())
optimizer = keras.optimizers.Adam(learning_rate=0.01, clipnorm=1.0)
loss_function = keras.losses.Huber()
memory = deque(maxlen=300)


@tf.function
def learn(states, actions, rewards, next_states, done):
    future = tf.reduce_max(model_target(next_states), axis=1)
    wanted = rewards + GAMMA * future * (1 - done)
    with tf.GradientTape() as tape:
        q_values = tf.reduce_sum(model(states) * tf.one_hot(actions, ACTIONS), axis=1)
        loss = loss_function(wanted, q_values)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


environment = Corridor()
epsilon, frames, losses, episode_rewards = 1.0, 0, [], []
for _episode in range(14):
    state, episode_reward, done = environment.reset(), 0.0, False
    while not done:
        frames += 1
        if rng.random() < epsilon:
            action = int(rng.integers(ACTIONS))
        else:
            action = int(tf.argmax(model(state[None], training=False)[0]))
        epsilon = max(epsilon * 0.985, 0.05)
        next_state, reward, done = environment.step(action)
        memory.append((state, action, reward, next_state, float(done)))
        state = next_state
        episode_reward += reward
        if frames % 4 == 0 and len(memory) >= 21:
            chosen = [memory[index] for index in rng.choice(len(memory), 21, replace=False)]
            batch = [np.array(part) for part in zip(*chosen, strict=True)]
            losses.append(
                float(
                    learn(
                        *(
                            part.astype("int32" if i == 1 else "float32")
                            for i, part in enumerate(batch)
                        )
                    )
                )
            )
        if frames % 20 == 0:
            model_target.set_weights(model.get_weights())
    episode_rewards.append(round(episode_reward, 6))

q_values = model(np.eye(LENGTH, dtype="float32")).numpy()
result = {
    "episode_rewards": episode_rewards,
    "frames": frames,
    "losses": losses[:: max(1, len(losses) // 8)],
    "q_values": q_values.tolist(),
}
print("RESULT", json.dumps(result))
