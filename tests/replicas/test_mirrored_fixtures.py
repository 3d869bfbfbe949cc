"""The fixtures that give tests several replicas in one process."""

import pytest


@pytest.mark.parametrize(("name", "count"), [("mirrored2", 2), ("mirrored3", 3)])
def test_replicas_are_in_sync(name, count, request):
    import tensorflow as tf

    strategy = request.getfixturevalue(name)
    assert strategy.num_replicas_in_sync == count

    def reduce():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.cast(context.replica_id_in_sync_group, tf.float32))

    results = strategy.experimental_local_results(tf.function(strategy.run)(reduce))
    assert [float(each) for each in results] == [sum(range(count))] * count
