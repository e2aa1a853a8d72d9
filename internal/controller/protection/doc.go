// Package protection keeps claims while Pods use them and volumes while claims
// are bound to them: it takes the protecting finalizers away when the time has
// come. The API server sets them when the objects are made; where its admission
// did not, this controller does.
package protection
