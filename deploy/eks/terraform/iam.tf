# Roles of the controllers, by EKS pod identity. FSx has none: its volume is static and nodes mount it by name.
locals {
  account = data.aws_caller_identity.this.account_id
  managed = "arn:${data.aws_partition.this.partition}:iam::aws:policy"
  pod_roles = merge(
    {
      karpenter = { namespace = "kube-system", account = "karpenter", policy = aws_iam_policy.karpenter.arn }
      cni       = { namespace = "kube-system", account = "aws-node", policy = "${local.managed}/AmazonEKS_CNI_Policy" }
      ebs = {
        namespace = "kube-system", account = "ebs-csi-controller-sa"
        policy    = "${local.managed}/service-role/AmazonEBSCSIDriverPolicy"
      }
    },
    var.storage != "efs" ? {} : {
      efs = {
        namespace = "kube-system", account = "efs-csi-controller-sa"
        policy    = "${local.managed}/service-role/AmazonEFSCSIDriverPolicy"
      }
    },
    var.storage != "s3" ? {} : {
      s3 = { namespace = "kube-system", account = "s3-csi-driver-sa", policy = one(aws_iam_policy.bucket[*].arn) }
    },
    !var.logs ? {} : {
      loki = { namespace = "monitoring", account = "loki", policy = one(aws_iam_policy.logs[*].arn) }
    }
  )
}

resource "aws_iam_role" "pod" {
  for_each = local.pod_roles
  name     = "${var.name}-${each.key}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Condition = { StringEquals = { # only this account of this cluster, whatever is associated elsewhere
        "aws:RequestTag/eks-cluster-name"           = var.name
        "aws:RequestTag/kubernetes-namespace"       = each.value.namespace
        "aws:RequestTag/kubernetes-service-account" = each.value.account
      } }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "pod" {
  for_each   = local.pod_roles
  role       = aws_iam_role.pod[each.key].name
  policy_arn = each.value.policy
}

resource "aws_iam_policy" "bucket" {
  count = var.storage == "s3" ? 1 : 0
  name  = "${var.name}-bucket"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = "s3:ListBucket", Resource = "arn:${data.aws_partition.this.partition}:s3:::${local.bucket}" },
      { Effect = "Allow", Action = "s3:GetObject", Resource = "arn:${data.aws_partition.this.partition}:s3:::${local.bucket}/*" }
    ]
  })
}

resource "aws_iam_policy" "logs" {
  count = var.logs ? 1 : 0
  name  = "${var.name}-logs"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = "s3:ListBucket", Resource = aws_s3_bucket.logs[0].arn },
      {
        Effect   = "Allow", Action = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
        Resource = "${aws_s3_bucket.logs[0].arn}/*"
      }
    ]
  })
}

# Roles of the control plane, of the managed system nodes and of the nodes that Karpenter starts; eksctl makes none itself.
# The nodes have no policy for the CNI: it has a pod identity.
locals {
  node_policies = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore"]
  service_roles = {
    cluster = { name = "${var.name}-cluster", service = "eks", policies = ["AmazonEKSClusterPolicy"] }
    system  = { name = "${var.name}-system-node", service = "ec2", policies = local.node_policies }
    node    = { name = "KarpenterNodeRole-${var.name}", service = "ec2", policies = local.node_policies }
  }
  service_policies = merge([
    for role, x in local.service_roles : { for policy in x.policies : "${role}-${policy}" => { role = role, policy = policy } }
  ]...)
}

resource "aws_iam_role" "service" {
  for_each = local.service_roles
  name     = each.value.name
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "${each.value.service}.amazonaws.com" }
      Action    = each.key == "cluster" ? ["sts:AssumeRole", "sts:TagSession"] : ["sts:AssumeRole"]
    }]
  })
}

resource "aws_iam_role_policy_attachment" "service" {
  for_each   = local.service_policies
  role       = aws_iam_role.service[each.value.role].name
  policy_arn = "${local.managed}/${each.value.policy}"
}

resource "aws_iam_policy" "karpenter" {
  name = "KarpenterControllerPolicy-${var.name}"
  # Without the names of the statements: IAM takes 6,144 characters, and a name of 38 occurs 30 times.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      for statement in jsondecode(templatefile("${path.module}/karpenter-policy.json.tftpl", {
        partition = data.aws_partition.this.partition, region = var.region, account = local.account, name = var.name
        node_role = aws_iam_role.service["node"].arn, queue = aws_sqs_queue.interruption.arn
      })).Statement : { for key, value in statement : key => value if key != "Sid" }
    ]
  })
}

# Karpenter hears through this queue of spot interruptions two minutes ahead, and of maintenance.
resource "aws_sqs_queue" "interruption" {
  name                      = var.name
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "interruption" {
  queue_url = aws_sqs_queue.interruption.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.interruption.arn
      },
      {
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.interruption.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      }
    ]
  })
}

locals {
  events = {
    health       = { source = "aws.health", type = "AWS Health Event" }
    interruption = { source = "aws.ec2", type = "EC2 Spot Instance Interruption Warning" }
    rebalance    = { source = "aws.ec2", type = "EC2 Instance Rebalance Recommendation" }
    state        = { source = "aws.ec2", type = "EC2 Instance State-change Notification" }
  }
}

resource "aws_cloudwatch_event_rule" "interruption" {
  for_each      = local.events
  name          = "${var.name}-${each.key}"
  event_pattern = jsonencode({ source = [each.value.source], "detail-type" = [each.value.type] })
}

resource "aws_cloudwatch_event_target" "interruption" {
  for_each = local.events
  rule     = aws_cloudwatch_event_rule.interruption[each.key].name
  arn      = aws_sqs_queue.interruption.arn
}
