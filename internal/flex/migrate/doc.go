// Package migrate moves volumes from an in-tree Flex plugin to the bridge and back, as
// decide/migrate decides.
//
// Life cycle: Run gathers the facts about one volume, does the next step, and repeats that until
// all is done or a user has to act. If another component has to act, it waits for a watch event.
// Its only memory is the journal, a ConfigMap that is written before the first change: after a
// crash, Run can be called again on any machine.
package migrate
