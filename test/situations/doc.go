// Package situations tests what `volplane why` answers about each way in which a volume can be stuck, with a driver
// whose failures the tests control, beside the built programs.
package situations
