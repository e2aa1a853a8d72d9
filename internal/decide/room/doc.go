// Package room decides what becomes of the space that the control plane itself
// needs: what its database gives back, when new objects are refused so that
// there is room to delete some, and how much of the disk is held in reserve.
package room
