"""An actor-critic agent learns to balance a pole, from complete episodes, in an eager loop."""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(251)
rng = np.random.default_rng(252)


class Pole:
    """An angle that falls further the further it has fallen; a push moves it back."""

    def reset(self):
        self.state = rng.uniform(-0.05, 0.05, 2)
        return self.state.astype("float32")

    def step(self, action):
        angle, speed = self.state
        speed += 0.1 * (2 * angle + (1 if action else -1) * 0.5)
        self.state = np.array([angle + 0.1 * speed, speed])
        return self.state.astype("float32"), 1.0, abs(self.state[0]) > 0.3


inputs = keras.layers.Input(shape=(2,))
common = keras.layers.Dense(24, activation="relu")(inputs)
action = keras.layers.Dense(2, activation="softmax")(common)
critic = keras.layers.Dense(1)(common)
model = keras.Model(inputs=inputs, outputs=[action, critic])

optimizer = keras.optimizers.Adam(learning_rate=0.01)
huber_loss = keras.losses.Huber()
gamma, eps = 0.9, np.finfo(np.float32).eps.item()
environment = Pole()
lengths, losses = [], []
for _episode in range(5):
    state, log_probs, values, rewards = environment.reset(), [], [], []
    with tf.GradientTape() as tape:
        for _step in range(20):
            action_probs, critic_value = model(state[None])
            values.append(critic_value[0, 0])
            chosen = int(rng.random() < float(action_probs[0, 1]))
            log_probs.append(tf.math.log(action_probs[0, chosen]))
            state, reward, done = environment.step(chosen)
            rewards.append(reward)
            if done:
                break
        returns, discounted_sum = [], 0.0
        for reward in reversed(rewards):
            discounted_sum = reward + gamma * discounted_sum
            returns.insert(0, discounted_sum)
        returns = np.array(returns)
        returns = (returns - np.mean(returns)) / (np.std(returns) + eps)
        actor_losses, critic_losses = [], []
        for log_prob, value, ret in zip(log_probs, values, returns, strict=True):
            actor_losses.append(-log_prob * (ret - float(value)))
            critic_losses.append(huber_loss([value], [ret]))
        loss_value = sum(actor_losses) + sum(critic_losses)
    grads = tape.gradient(loss_value, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    lengths.append(len(rewards))
    losses.append(float(loss_value))

result = {
    "lengths": lengths,
    "losses": losses,
    "weights": float(np.sqrt(sum(np.sum(np.square(w)) for w in model.get_weights()))),
}
print("RESULT", json.dumps(result))
