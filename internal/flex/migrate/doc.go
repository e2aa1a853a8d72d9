// Package migrate moves volumes from an in-tree Flex plugin to the bridge and
// back, as decide/migrate says.
//
// Life cycle: Run gathers what is known of one volume, does the next step, and
// goes on until all is done or a user has to act; where somebody else has to
// act it waits for a watch to tell. Nothing but the journal, a ConfigMap that
// is written before the first change, is remembered: whoever is killed starts
// Run again, on whatever machine.
package migrate
