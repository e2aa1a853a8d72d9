// Package nodelife marks nodes whose agents have stopped, as Kubernetes' node
// lifecycle controller does: their Ready condition becomes Unknown. The agent
// sets it again when it is back. It deletes the Pods of nodes whose objects were
// deleted and do not come back, or are said to be out of service.
package nodelife
