// Package nodelife does the work of Kubernetes' node lifecycle controller. It sets the Ready
// condition of nodes whose agents have stopped to Unknown; the agent sets it again when it returns.
// It deletes the Pods of nodes that were deleted, and of those with the taint out-of-service.
package nodelife
