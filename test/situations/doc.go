// Package situations tests what `volplane why` answers about each way in which a volume can be stuck, with a driver
// that fails as the tests tell it, beside the built programs.
package situations
