// Package differential plays sequences of actions by users, administrators and drivers, drawn by lot, to controllers of
// volplane and to those of Kubernetes, and compares the results.
//
// A Topic says what is compared: its package draws the sequences, describes the objects, and has rows with the reasons
// for which the sides may differ. A difference without a reason is made as short as possible, and fails the test.
package differential
